//! A running service, as commands ask it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use kvtide::{
    access::TOKEN_PREFIX,
    config::LISTEN,
    serving::{Failure, trust},
    watched::read_text,
};
use serde_json::Value;
use ureq::{Body, http::Response};

/// Bytes of an answer.
const LARGEST: u64 = 1 << 30;
const PATIENCE: Duration = Duration::from_secs(30);

/// Where it is, and what it is shown.
#[derive(Args)]
pub(super) struct ServiceArguments {
    /// The service's address.
    #[arg(long, value_name = "URL", default_value_t = format!("http://{LISTEN}"), env = "KVTIDE_URL")]
    url: String,
    /// A file with the access token to show to it.
    #[arg(long, value_name = "FILE", env = "KVTIDE_TOKEN")]
    token: Option<PathBuf>,
    /// Certificates of authorities to trust it by over HTTPS, as PEM; by default Mozilla's.
    #[arg(long, value_name = "FILE", env = "KVTIDE_TLS_CA")]
    tls_ca: Option<PathBuf>,
}

/// A running service.
pub(super) struct ServiceAt {
    url: String,
    authorization: Option<String>,
    agent: ureq::Agent,
}

impl ServiceArguments {
    /// The service, whether or not it is there.
    pub(super) fn service(&self) -> Result<ServiceAt, Failure> {
        let authorities = self.tls_ca.as_ref().map(|path| read_text(path)).transpose()?;
        let token = self.token.as_deref().map(read_token).transpose()?;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .tls_config(trust(authorities.as_deref())?);
        let scheme = if self.url.contains("://") { "" } else { "http://" };
        Ok(ServiceAt {
            url: format!("{scheme}{}", self.url.trim_end_matches('/')),
            authorization: token.map(|token| format!("Bearer {token}")),
            agent: config.build().into(),
        })
    }
}

/// The token in a file. One in place of the file's name is not shown again.
fn read_token(path: &Path) -> Result<String, Failure> {
    match path.to_str() {
        Some(text) if text.starts_with(TOKEN_PREFIX) && !path.exists() => {
            Err("expected a file with the access token, got a token".into())
        }
        Some(_) | None => Ok(read_text(path)?.trim().to_owned()),
    }
}

impl ServiceAt {
    /// Its address.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// What it answers to a GET, as JSON.
    pub(super) fn get(&self, route: &str) -> Result<Value, Failure> {
        self.read(self.ask(route)?)
    }

    /// The same as text, whatever its status: whether that is a success comes first.
    pub(super) fn text(&self, route: &str) -> Result<(bool, String), Failure> {
        let mut response = self.ask(route)?;
        let text = response.body_mut().with_config().limit(LARGEST).read_to_string();
        let text = text.map_err(|error| self.is_none(&response, &error))?;
        Ok((response.status().is_success(), text))
    }

    /// What it answers to a POST.
    pub(super) fn post(&self, route: &str, body: &Value) -> Result<Value, Failure> {
        let mut request = self.agent.post(format!("{}{route}", self.url));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.read(request.send_json(body).map_err(|error| self.is_away(&error))?)
    }

    fn ask(&self, route: &str) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(format!("{}{route}", self.url));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        request.call().map_err(|error| self.is_away(&error))
    }

    /// The service's answer, or what it says is wrong.
    fn read(&self, mut response: Response<Body>) -> Result<Value, Failure> {
        let value = response.body_mut().with_config().limit(LARGEST).read_json();
        let value: Value = value.map_err(|error| self.is_none(&response, &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(value);
        }
        let problem = serde_json::to_string_pretty(&value)?;
        let detail = value["detail"].as_str().unwrap_or_default();
        Err(format!("the service refused: {status}: {detail}\n{problem}").into())
    }

    fn is_away(&self, error: &ureq::Error) -> Failure {
        format!("no service answers at {}: {error}", self.url).into()
    }

    fn is_none(&self, response: &Response<Body>, error: &ureq::Error) -> Failure {
        format!("what answers at {} with {} is no kvtide: {error}", self.url, response.status()).into()
    }
}
