//! What the service proves who it is with.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::watched::{Reason, Watched, read_text};

/// Certificates and their key.
pub struct Tls(pub(super) Arc<ServerConfig>);

impl Tls {
    /// Reads certificates and the key of the first of them, as PEM.
    ///
    /// # Errors
    /// [`Reason`], naming the file.
    pub fn read(certificates: PathBuf, key: PathBuf) -> Result<Arc<Watched<Tls>>, Reason> {
        Watched::new(vec![certificates, key], |paths| {
            let [certificates, key] = paths else { return Err("expected two files".into()) };
            let named =
                |path: &PathBuf, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            let text = read_text(certificates)?;
            let chain = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>();
            let chain = chain.map_err(|error| named(certificates, &error))?;
            if chain.is_empty() {
                return Err(named(certificates, &"expected a certificate as PEM, got none").into());
            }
            let private = PrivateKeyDer::from_pem_slice(read_text(key)?.as_bytes());
            let private = private.map_err(|_| named(key, &"expected a private key as PEM"))?;
            let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_single_cert(chain, private)
                .map_err(|error| named(key, &error))?;
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok(Tls(Arc::new(config)))
        })
    }
}
