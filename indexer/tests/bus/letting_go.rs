//! A stream that is bound no more is followed no more, whether or not anything comes of it.

use std::{sync::Arc, time::Duration};

use kvtide::{
    Clock, Format, Indexer, Limits, Scope, Stream,
    feed::{Bus, Feeds},
};
use kvtide_tests::harness::NatsServer;

const SUBJECT: &str = "ns.backend.kv-events";
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until somebody follows the subject, or nobody does: then the server says that nobody responds.
async fn wait_until_followed(client: &async_nats::Client, followed: bool) {
    let asked = async {
        loop {
            let request = async_nats::Request::new().timeout(Some(Duration::from_millis(200)));
            let refused = client.send_request(SUBJECT, request).await.unwrap_err().kind();
            if (refused != async_nats::RequestErrorKind::NoResponders) == followed {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, asked).await;
    assert!(waited.is_ok(), "followed: expected {followed} within {PATIENCE:?}");
}

#[tokio::test]
async fn a_subscription_ends_with_its_stream() {
    let nats = NatsServer::start();
    let client = async_nats::connect(nats.url()).await.unwrap();
    let indexer = Arc::new(Indexer::new(Limits::default(), Clock::default()));
    let feeds = Feeds::new(Arc::clone(&indexer));
    let bus = Bus { url: nats.url(), ..Bus::default() };
    for turn in 0..2 {
        let stream = indexer.bind(Stream::new("bus", Scope::new("m", 4 + turn), Format::Dynamo)).unwrap();
        feeds.follow_nats(&bus, vec![(SUBJECT.to_owned(), Arc::clone(&stream))]).await.unwrap();
        wait_until_followed(&client, true).await;
        indexer.unbind(&stream);
        wait_until_followed(&client, false).await;
    }
    feeds.stop().await;
}
