//! An authority of one's own, and certificates for loopback.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::Folder;

/// An authority that clients may trust.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Default for Authority {
    fn default() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }
}

impl Authority {
    /// A new one, unlike any other.
    #[must_use]
    pub fn new() -> Authority {
        Authority::default()
    }

    /// Its certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes a certificate for loopback (`NAME.pem`) and its key (`NAME.key`) into a folder. Returns the two paths.
    #[must_use]
    pub fn certify(&self, folder: &Folder, name: &str) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let (certificate, key) = (certificate.pem(), key.serialize_pem());
        [folder.write(&format!("{name}.pem"), certificate), folder.write(&format!("{name}.key"), key)]
    }
}
