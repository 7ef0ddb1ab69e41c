//! `kvtide.{instance}.overlap`: the same lookup as a NATS request, of a service that the bus lists.
//!
//! It has a connection of its own: a request that is large, or waits, is in no event's way.

use std::{sync::Arc, time::Duration};

use async_nats::{
    Client, Event, HeaderMap, Message, PublishError,
    connection::State,
    service::{
        NATS_SERVICE_ERROR, NATS_SERVICE_ERROR_CODE, Request as ServiceRequest, Service as Listed,
        ServiceExt, endpoint::Endpoint, error::Error,
    },
};
use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::StreamExt;
use opentelemetry::propagation::Extractor;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
};
use tracing::{Instrument, Span, debug, info, warn};

use super::{
    ServiceLimits,
    body::{Body, JSON, MSGPACK, apart, plain_media_type},
    cores,
    guard::Access,
    problem::Problem,
    request::Request,
};
use crate::{
    Indexer, Instance,
    access::Role,
    feed::{Bus, FeedError},
    traces,
};

const CONTENT_TYPE: &str = "Content-Type";
const AUTHORIZATION: &str = "Authorization";
/// Requests that have come and have no place yet. It takes microseconds to give them one, or to refuse them.
const QUEUE_MESSAGES: usize = 1024;
/// Whatever a limit says, no more can be counted.
const MOST: usize = u32::MAX as usize;
/// What a reply's headers take of the largest message.
const HEADERS_BYTES: usize = 256;
/// How long a stop waits for requests that are under way.
const GRACE: Duration = Duration::from_secs(3);

/// Answers requests on a bus until it is stopped.
pub struct NatsService {
    client: Client,
    listed: Listed,
    answering: JoinHandle<()>,
}

/// Why requests cannot be answered on a bus at all.
#[derive(Debug, thiserror::Error)]
pub enum NatsServiceError {
    /// There is no way to the bus.
    #[error(transparent)]
    Connect(#[from] FeedError),
    /// The bus refuses the subject, or the service that it is of.
    #[error("cannot answer at {subject}: {error}")]
    Refused {
        /// The subject.
        subject: String,
        /// What the client says.
        error: async_nats::Error,
    },
}

impl NatsService {
    /// Answers at `kvtide.{instance}.overlap`. Returns at once, whether or not the server is there yet; the client connects,
    /// and connects again, by itself.
    ///
    /// # Errors
    /// [`NatsServiceError`] for an address or a subject that cannot be used at all.
    pub async fn start(
        indexer: Arc<Indexer>,
        limits: ServiceLimits,
        access: Access,
        bus: &Bus,
        instance: &Instance,
    ) -> Result<NatsService, NatsServiceError> {
        let subject = format!("kvtide.{instance}.overlap");
        let client = bus.connect("kvtide requests", QUEUE_MESSAGES, report).await?;
        let refused = |error| NatsServiceError::Refused { subject: subject.clone(), error };
        let named = [("instance".to_owned(), instance.to_string())];
        let listed = client
            .service_builder()
            .description("how much of a prompt's KV cache every inference worker already holds")
            .metadata(named.into())
            .start("kvtide", env!("CARGO_PKG_VERSION"))
            .await
            .map_err(refused)?;
        let endpoint = listed.endpoint_builder().name("overlap").add(&subject).await.map_err(refused)?;
        info!(subject, "answering");
        let desk = Arc::new(Desk::new(client.clone(), indexer, limits, access));
        Ok(NatsService { client, listed, answering: tokio::spawn(desk.serve(endpoint)) })
    }

    /// Takes no new requests, answers those that are here already, and ends. Whoever asks later is told by the bus that
    /// nobody answers.
    pub async fn stop(self) {
        // What comes back shows that everything which was routed here before it has been read: the library forgets its
        // subscription at once, and with it whatever is read later.
        if tokio::time::timeout(GRACE, there_and_back(&self.client)).await.is_err() {
            debug!("the bus does not answer; requests on their way here are not either");
        }
        // It only tells the endpoint.
        let _told = self.listed.stop().await;
        if tokio::time::timeout(GRACE, self.answering).await.is_err() {
            warn!("gave up on NATS requests that were still under way after {GRACE:?}");
        }
    }
}

/// Sends something to itself, and waits for it.
async fn there_and_back(client: &Client) {
    let inbox = client.new_inbox();
    if let Ok(mut back) = client.subscribe(inbox.clone()).await
        && client.publish(inbox, Bytes::new()).await.is_ok()
    {
        back.next().await;
    }
}

/// Where requests wait, and take turns.
struct Desk {
    client: Client,
    indexer: Arc<Indexer>,
    limits: ServiceLimits,
    access: Access,
    places: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// More at once than there are cores would only make all of them late.
    turns: Semaphore,
}

/// Room for a request, until it is answered.
struct Place(#[expect(dead_code, reason = "dropping gives the room back")] [OwnedSemaphorePermit; 2]);

impl Desk {
    fn new(client: Client, indexer: Arc<Indexer>, limits: ServiceLimits, access: Access) -> Desk {
        Desk {
            client,
            indexer,
            limits,
            access,
            places: Arc::new(Semaphore::new(limits.bus_requests.min(MOST))),
            bytes: Arc::new(Semaphore::new(limits.bus_bytes.min(MOST))),
            turns: Semaphore::new(cores()),
        }
    }

    async fn serve(self: Arc<Self>, mut requests: Endpoint) {
        while let Some(request) = requests.next().await {
            if request.message.reply.is_none() {
                // Nobody waits for an answer.
                continue;
            }
            let headers = Headers(request.message.headers.as_ref());
            let span = traces::on_bus(&request.message.subject, &headers);
            match self.place(&request.message) {
                Ok(place) => drop(tokio::spawn(Arc::clone(&self).answer(request, place).instrument(span))),
                Err(problem) => self.send(request, Err(problem)).instrument(span).await,
            }
        }
        // All places are free when all requests are answered.
        let all = u32::try_from(self.limits.bus_requests.min(MOST)).unwrap_or(u32::MAX);
        let _answered = self.places.acquire_many(all).await;
        if self.client.connection_state() == State::Connected {
            let _sent = self.client.flush().await;
        }
    }

    fn place(&self, message: &Message) -> Result<Place, Problem> {
        let (got, limit) = (message.payload.len(), self.limits.body_bytes);
        if got > limit {
            return Err(Problem::too_large("the body's bytes", "body_bytes", Some(got as u64), limit as u64));
        }
        let take = |room: &Arc<Semaphore>, count: usize, name, limit| {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            Arc::clone(room).try_acquire_many_owned(count).map_err(|_| Problem::busy(name, limit))
        };
        let place = take(&self.places, 1, "bus_requests", self.limits.bus_requests)?;
        let bytes = take(&self.bytes, got.min(self.limits.bus_bytes), "bus_bytes", self.limits.bus_bytes)?;
        Ok(Place([place, bytes]))
    }

    async fn answer(self: Arc<Self>, request: ServiceRequest, _place: Place) {
        let Ok(_turn) = self.turns.acquire().await else { return };
        // A long prompt takes milliseconds, in which this thread would serve no event.
        let (desk, message) = (Arc::clone(&self), request.message.clone());
        let reply = apart(move || desk.look_up(&message)).await;
        self.send(request, reply).await;
    }

    fn look_up(&self, message: &Message) -> Result<Reply, Problem> {
        let headers = message.headers.as_ref();
        let asker = self.access.asker(stated(headers, AUTHORIZATION).map(str::as_bytes), Role::Query)?;
        let form = Form::of(headers)?;
        let body = Body::from(message.payload.clone());
        let request: Request = match form {
            Form::Json => Request::from_json(&body)?,
            Form::Msgpack => Request::from_msgpack(&body)?,
        };
        let answer = request.answer(&self.indexer, &self.limits, |query| asker.may_ask(query))?;
        let bytes = match form {
            Form::Json => serde_json::to_vec(&answer)?,
            Form::Msgpack => rmp_serde::to_vec_named(&answer)
                .map_err(|_| Problem::impossible("the answer cannot be written as msgpack"))?,
        };
        let (got, limit) = (bytes.len(), self.client.max_payload().saturating_sub(HEADERS_BYTES));
        if got > limit {
            let what = "the answer's bytes, which limit, ranks or freshness would make fewer,";
            return Err(Problem::too_large(what, "max_payload", Some(got as u64), limit as u64));
        }
        Ok(Reply { bytes, form })
    }

    async fn send(&self, request: ServiceRequest, reply: Result<Reply, Problem>) {
        let status = reply.as_ref().map_or_else(Problem::status, |_| StatusCode::OK);
        traces::note_bus_status(&Span::current(), status);
        let sent = match reply {
            Ok(Reply { bytes, form }) => {
                let headers = headers([(CONTENT_TYPE, form.media_type())]);
                request.respond_with_headers(Ok(bytes.into()), headers).await
            }
            Err(problem) => self.refuse(request, problem).await,
        };
        if let Err(error) = sent {
            debug!("a NATS request's answer cannot be sent: {error}");
        }
    }

    async fn refuse(&self, mut request: ServiceRequest, problem: Problem) -> Result<(), PublishError> {
        let (code, title) = (problem.status().as_u16(), problem.title());
        let headers = headers([
            (CONTENT_TYPE, Problem::MEDIA_TYPE),
            (NATS_SERVICE_ERROR, title),
            (NATS_SERVICE_ERROR_CODE, &code.to_string()),
        ]);
        // The library's own errors have no body. To have this one counted as an error, it answers nobody.
        let nobody = self.client.new_inbox().into();
        if let Some(reply) = request.message.reply.replace(nobody) {
            self.client.publish_with_headers(reply, headers, problem.document().into()).await?;
        }
        request.respond(Err(Error { status: title.to_owned(), code: code.into() })).await
    }
}

struct Reply {
    bytes: Vec<u8>,
    form: Form,
}

/// In which form a request comes, and its answer goes.
#[derive(Clone, Copy)]
enum Form {
    Json,
    Msgpack,
}

impl Form {
    fn of(headers: Option<&HeaderMap>) -> Result<Form, Problem> {
        let Some(media_type) = stated(headers, CONTENT_TYPE) else { return Ok(Form::Json) };
        match plain_media_type(media_type).as_str() {
            JSON => Ok(Form::Json),
            MSGPACK => Ok(Form::Msgpack),
            other => Err(Problem::media_type(other, &[JSON, MSGPACK])),
        }
    }

    fn media_type(self) -> &'static str {
        match self {
            Form::Json => JSON,
            Form::Msgpack => MSGPACK,
        }
    }
}

/// What a header says. Names are compared by their letters on the bus, and every client has its own way to write them.
fn stated<'a>(headers: Option<&'a HeaderMap>, name: &str) -> Option<&'a str> {
    let mut named = headers.into_iter().flat_map(HeaderMap::iter);
    let (_, values) = named.find(|(other, _)| AsRef::<str>::as_ref(*other).eq_ignore_ascii_case(name))?;
    Some(values.first()?.as_str())
}

/// A request's headers, as a span's parent is looked for in them.
struct Headers<'a>(Option<&'a HeaderMap>);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        stated(self.0, key)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.into_iter().flat_map(HeaderMap::iter).map(|(name, _)| name.as_ref()).collect()
    }
}

fn headers<const N: usize>(headers: [(&str, &str); N]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(name, value);
    }
    map
}

fn report(event: Event) {
    match event {
        Event::Connected => info!("NATS requests: a connection is there"),
        other => warn!("NATS requests: {other}"),
    }
}
