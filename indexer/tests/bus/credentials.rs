//! A bus that lets in only those who show who they are: by nkey, by credentials, by certificate.

use data_encoding::BASE64URL_NOPAD;
use kvtide_tests::{
    Authority, Folder,
    harness::{Kvtide, NatsServer, wait_for},
};
use nkeys::KeyPair;
use serde_json::{Value, json};

const KVTIDE: &str = env!("CARGO_BIN_EXE_kvtide");

fn follow(url: &str, arguments: &[&str]) -> Kvtide {
    let stream = ["serve", "--nats", url, "--model", "m", "--block-size", "16"];
    Kvtide::start(KVTIDE, &[&stream[..], arguments].concat())
}

/// Whether the bus lets kvtide in.
fn expect(nats: &NatsServer, arguments: &[&str], is_let_in: bool) {
    expect_at(&nats.url(), arguments, is_let_in);
}

fn expect_at(url: &str, arguments: &[&str], is_let_in: bool) {
    let mut kvtide = follow(url, arguments);
    if is_let_in {
        kvtide.wait_for_log("connected to NATS");
        wait_for("being ready", || (kvtide.get("/readyz").0 == 200).then_some(()));
    } else {
        kvtide.wait_for_log("NATS: ");
        let (status, body) = kvtide.get("/readyz");
        assert!(status == 503 && body.contains("a connection to NATS"), "{status} {body}");
    }
}

#[test]
fn by_nkey() {
    let (folder, user) = (Folder::new(), KeyPair::new_user());
    let seed = folder.write("seed", format!("{}\n", user.seed().unwrap()));
    let stranger = folder.write("stranger", KeyPair::new_user().seed().unwrap());
    let users = format!("authorization: {{users: [{{nkey: {}}}]}}", user.public_key());
    let nats = NatsServer::configured(&users);
    expect(&nats, &["--nats-nkey", &seed], true);
    expect(&nats, &["--nats-nkey", &stranger], false);
    expect(&nats, &[], false);
}

/// A token of NATS' own kind, signed by `by`.
fn jwt(by: &KeyPair, subject: &str, name: &str, of: &Value) -> String {
    let claims =
        json!({"jti": name, "iat": 1, "iss": by.public_key(), "name": name, "sub": subject, "nats": of});
    let encode = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let text = format!("{}.{}", encode(&json!({"typ": "JWT", "alg": "ed25519-nkey"})), encode(&claims));
    let signature = by.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", BASE64URL_NOPAD.encode(&signature))
}

#[test]
fn by_credentials() {
    let [operator, account, user] = [KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_user()];
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "wildcards": true});
    let of_operator = jwt(&operator, &operator.public_key(), "o", &json!({"type": "operator", "version": 2}));
    let of_account = jwt(
        &operator,
        &account.public_key(),
        "a",
        &json!({"type": "account", "version": 2, "limits": limits}),
    );
    let of_user = jwt(
        &account,
        &user.public_key(),
        "u",
        &json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}),
    );
    let nats = NatsServer::configured(&format!(
        "operator: {of_operator}\nresolver: MEMORY\nresolver_preload: {{{}: {of_account}}}\n",
        account.public_key()
    ));
    let credentials = |user_jwt: &str, seed: &str| {
        format!(
            "-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    };
    let folder = Folder::new();
    let file = folder.write("user.creds", credentials(&of_user, &user.seed().unwrap()));
    let other = folder.write("other.creds", credentials(&of_user, &KeyPair::new_user().seed().unwrap()));
    expect(&nats, &["--nats-credentials", &file], true);
    expect(&nats, &["--nats-credentials", &other], false);
    expect(&nats, &[], false);
}

#[test]
fn by_certificate() {
    let (folder, authority) = (Folder::new(), Authority::new());
    let ca = folder.write("ca.pem", authority.pem());
    let ([server, server_key], [client, client_key]) =
        (authority.certify(&folder, "server"), authority.certify(&folder, "client"));
    let nats = NatsServer::configured(&format!(
        "tls: {{cert_file: {server:?}, key_file: {server_key:?}, ca_file: {ca:?}, verify: true}}"
    ));
    let client = ["--nats-tls-cert", &client, "--nats-tls-key", &client_key];
    let url = nats.url().replace("nats://", "tls://");
    expect(&nats, &[&client[..], &["--nats-tls-ca", &ca]].concat(), true);
    expect_at(&url, &[&client[..], &["--nats-tls-ca", &ca]].concat(), true);
    // Without an authority to trust it by, and without a certificate to show.
    expect_at(&url, &client, false);
    expect(&nats, &["--nats-tls-ca", &ca], false);
}

#[test]
fn one_of_several_servers_is_enough() {
    let nats = NatsServer::start();
    expect_at(&format!("nats://127.0.0.1:1,{}", nats.url()), &[], true);
}
