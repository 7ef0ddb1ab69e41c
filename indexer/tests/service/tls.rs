//! HTTPS: by a certificate that clients trust, which may be changed while the service runs.

use std::{path::Path, time::Duration};

use kvtide_tests::{
    Authority, Folder,
    harness::{Kvtide, wait_for},
};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

const KVTIDE: &str = env!("CARGO_BIN_EXE_kvtide");

/// What a client that trusts these authorities gets.
fn get(url: &str, authorities: &str) -> Result<u16, ureq::Error> {
    let certificates = parse_pem(authorities.as_bytes()).map(|item| match item.unwrap() {
        PemItem::Certificate(certificate) => certificate,
        _ => panic!("only certificates are written"),
    });
    let roots = RootCerts::from(certificates.collect::<Vec<_>>());
    let tls = TlsConfig::builder().root_certs(roots).build();
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .tls_config(tls)
        .timeout_global(Some(Duration::from_secs(10)))
        .build()
        .into();
    Ok(agent.get(format!("{url}/healthz")).call()?.status().as_u16())
}

#[test]
fn clients_that_trust_the_authority_are_served_and_others_not() {
    let (folder, authority) = (Folder::new(), Authority::new());
    let [certificate, key] = authority.certify(&folder, "server");
    let mut kvtide = Kvtide::start(KVTIDE, &["serve", "--tls-cert", &certificate, "--tls-key", &key]);
    let url = kvtide.url().to_owned();
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    assert_eq!(get(&url, &authority.pem()).unwrap(), 200);
    let stranger = Authority::new();
    assert!(get(&url, &stranger.pem()).is_err());
    assert!(get(&url.replace("https", "http"), &authority.pem()).is_err());

    // A new one takes the place of the old one, and one that cannot be used does not.
    let _same_files = stranger.certify(&folder, "server");
    wait_for("the new certificate", || get(&url, &stranger.pem()).ok());
    assert!(get(&url, &authority.pem()).is_err());
    folder.write("server.key", "canary");
    let line = kvtide.wait_for_log("cannot be used");
    assert!(line.contains("server.key: expected a private key") && !line.contains("canary"), "{line}");
    assert_eq!(get(&url, &stranger.pem()).unwrap(), 200);
}

#[test]
fn a_peer_is_asked_over_https_with_a_token() {
    let (folder, authority) = (Folder::new(), Authority::new());
    let [certificate, key] = authority.certify(&folder, "server");
    let ca = folder.write("ca.pem", authority.pem());
    let admin =
        kvtide::access::NewToken::new([kvtide::access::Role::Admin].into(), ["*".to_owned()].into()).unwrap();
    let tokens = folder.write("tokens", &admin.line);
    let token = folder.write("token", format!("{}\n", admin.token));
    let served = ["serve", "--tls-cert", &certificate, "--tls-key", &key, "--tokens", &tokens];
    let first = Kvtide::start(KVTIDE, &served);
    let rows: [(&[&str], &str); 3] = [
        (&["--peer-tls-ca", &ca, "--peer-token", &token], "goes on with a snapshot"),
        (&["--peer-tls-ca", &ca], "snapshot refused"),
        (&["--peer-token", &token], "snapshot refused"),
    ];
    for (arguments, expected) in rows {
        let mut second = Kvtide::start(KVTIDE, &[&["serve", "--peer", first.url()], arguments].concat());
        second.wait_for_log(expected);
    }
    assert!(Path::new(&ca).exists());
}
