//! Connects to a NATS server, and again whenever the connection is lost.

use async_nats::{Client, ConnectOptions, Event};

/// A bus's address is none, or the server refuses.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {url}: {error}")]
pub struct ConnectError {
    /// The server's address, without credentials.
    pub url: String,
    /// What the client says.
    pub error: async_nats::ConnectError,
}

/// A connection of that name, in whose subscriptions so many messages may wait; `heard` is told what becomes of it. Returns
/// at once, whether or not the server is there yet.
pub(crate) async fn connect(
    url: &str,
    name: &str,
    queue_messages: usize,
    heard: impl Fn(Event) + Send + Sync + 'static,
) -> Result<Client, ConnectError> {
    let heard = move |event| {
        heard(event);
        async {}
    };
    ConnectOptions::new()
        .name(name)
        .retry_on_initial_connect()
        .subscription_capacity(queue_messages)
        .event_callback(heard)
        .connect(url)
        .await
        .map_err(|error| ConnectError { url: without_credentials(url), error })
}

fn without_credentials(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => url.to_owned(),
    }
}
