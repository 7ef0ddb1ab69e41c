//! Bodies: bytes within the limit, JSON in and out, and hashes as JSON has them.

use std::{fmt, marker::PhantomData, panic::resume_unwind, sync::Arc};

use axum::{
    body::Bytes,
    extract::{FromRequest, Request, rejection::BytesRejection},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{
        self, MapAccess, Visitor,
        value::{self, MapAccessDeserializer, UnitDeserializer},
    },
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::timeout,
};
use tracing::Span;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, OneOfBuilder, RefOr, Schema, Type},
};

use super::{Service, problem::Problem};

pub(super) const JSON: &str = "application/json";
/// A body of the form that JSON has.
pub(super) const MSGPACK: &str = "application/msgpack";

/// A body that is larger takes a millisecond or more, and is read and answered apart: others use the same thread.
const LARGE: usize = 1 << 20;

/// So deep may msgpack be nested; JSON may be twice as deep.
const DEEPEST: usize = 64;
/// Room for bodies is dealt out in pieces of so many bytes.
const PIECE: usize = 1024;

/// A body, read whole.
pub(super) struct Body {
    pub(super) bytes: Bytes,
    /// Its part of the room that there is for all of them.
    _room: Option<OwnedSemaphorePermit>,
}

/// As many pieces as make up so many bytes.
pub(super) fn room(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new((bytes / PIECE).clamp(1, u32::MAX as usize)))
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body { bytes, _room: None }
    }
}

impl FromRequest<Service> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Problem> {
        let (limits, patience) = (&service.limits, service.limits.request);
        let stated = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let length = stated.and_then(|length| length.parse().ok()).unwrap_or(limits.body_bytes);
        let pieces = length.min(limits.body_bytes).min(limits.bodies_bytes).div_ceil(PIECE).max(1);
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        let acquired = timeout(patience, Arc::clone(&service.bodies).acquire_many_owned(pieces)).await;
        let Ok(Ok(room)) = acquired else {
            return Err(Problem::busy("bodies_bytes", limits.bodies_bytes));
        };
        let Ok(read) = timeout(patience, Bytes::from_request(request, service)).await else {
            return Err(Problem::too_slow("the body", patience.as_secs()));
        };
        match read {
            Ok(bytes) => Ok(Body { bytes, _room: Some(room) }),
            Err(BytesRejection::FailedToBufferBody(failed))
                if failed.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE =>
            {
                let limit = limits.body_bytes as u64;
                Err(Problem::too_large("the body's bytes", "body_bytes", None, limit))
            }
            Err(rejection) => {
                Err(Problem::malformed(format!("the body cannot be read: {}", rejection.status())))
            }
        }
    }
}

/// Does what may wait, or takes long, where it is in nobody's way: connections share few threads.
pub(super) async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let span = Span::current();
    match spawn_blocking(move || span.in_scope(work)).await {
        Ok(done) => done,
        // Nobody cancels it.
        Err(error) => resume_unwind(error.into_panic()),
    }
}

impl Body {
    /// Does what takes long with a large body apart, when it is its turn.
    pub(super) async fn work<T: Send + 'static>(
        self,
        turns: &Semaphore,
        work: impl FnOnce(Body) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if self.bytes.len() <= LARGE { work(self) } else { self.work_apart(turns, work).await }
    }

    /// Does what may wait for others, or takes long, apart; with a large body when it is its turn.
    pub(super) async fn work_apart<T: Send + 'static>(
        self,
        turns: &Semaphore,
        work: impl FnOnce(Body) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        // Nobody closes it, so that there is always a turn.
        let _turn = if self.bytes.len() <= LARGE { None } else { Some(turns.acquire().await) };
        apart(move || work(self)).await
    }

    pub(super) fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        let Object(read) = serde_json::from_slice(&self.bytes)?;
        Ok(read)
    }

    /// The same as msgpack. What the library says of an error may carry what was sent.
    pub(super) fn msgpack<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        let malformed = |_| Problem::malformed("the body is no msgpack of the form that JSON has");
        from_msgpack(&self.bytes).map(|Object(read)| read).map_err(malformed)
    }

    /// Numbers of 32 bits, little-endian.
    pub(super) fn words(&self) -> Result<Vec<u32>, Problem> {
        let (words, rest) = self.bytes.as_chunks();
        if rest.is_empty() {
            return Ok(words.iter().map(|&word| u32::from_le_bytes(word)).collect());
        }
        let got = self.bytes.len();
        Err(Problem::impossible(format!("got {got} bytes, expected tokens of 4 bytes each")))
    }
}

/// Reads msgpack that is nested as deep as can be meant: each level takes of the thread's stack.
pub(super) fn from_msgpack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, rmp_serde::decode::Error> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
    deserializer.set_max_depth(DEEPEST);
    T::deserialize(&mut deserializer)
}

/// What the body is said to be, if anything is said.
pub(super) fn media_type(headers: &HeaderMap) -> Option<String> {
    Some(plain_media_type(&String::from_utf8_lossy(headers.get(header::CONTENT_TYPE)?.as_bytes())))
}

/// A media type without its parameters.
pub(super) fn plain_media_type(value: &str) -> String {
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Something that has to be an object: of itself serde takes an array of its members in order too.
pub(super) struct Object<T>(pub(super) T);

impl<'a, T: Deserialize<'a>> Deserialize<'a> for Object<T> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form<T>(PhantomData<T>);
        impl<'a, T: Deserialize<'a>> Visitor<'a> for Form<T> {
            type Value = Object<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                // What the type itself says.
                let refused = T::deserialize(UnitDeserializer::<value::Error>::new()).err();
                let said = refused.map(|error| error.to_string()).unwrap_or_default();
                formatter
                    .write_str(said.split_once(", expected ").map_or("an object", |(_, expected)| expected))
            }

            fn visit_map<A: MapAccess<'a>>(self, members: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members)).map(Object)
            }
        }
        deserializer.deserialize_map(Form(PhantomData))
    }
}

/// A member that has to be one.
pub(super) fn object<'a, D: Deserializer<'a>, T: Deserialize<'a>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(read)| read)
}

/// A JSON answer.
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(json) => ([(header::CONTENT_TYPE, JSON)], json).into_response(),
            Err(error) => Problem::from(error).into_response(),
        }
    }
}

/// A 64-bit hash: a number (a negative one by its bit pattern) or a string of up to 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Hash(pub(super) u64);

impl Hash {
    /// Hexadecimal digits with or without `0x`.
    pub(super) fn from_hex(text: &str) -> Option<Hash> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hex { u64::from_str_radix(digits, 16).ok().map(Hash) } else { None }
    }
}

/// Its schema: both forms.
impl PartialSchema for Hash {
    fn schema() -> RefOr<Schema> {
        let digits = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^(0x)?[0-9a-fA-F]{1,16}$"));
        let number =
            ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(i64::MIN)).maximum(Some(u64::MAX));
        OneOfBuilder::new().item(number).item(digits).description(Some("A 64-bit hash")).into()
    }
}

impl ToSchema for Hash {}

impl<'a> Deserialize<'a> for Hash {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl Visitor<'_> for Form {
            type Value = Hash;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a 64-bit number or up to 16 hexadecimal digits")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Hash, E> {
                Ok(Hash(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Hash, E> {
                Ok(Hash(value.cast_unsigned()))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Hash, E> {
                Hash::from_hex(value).ok_or_else(|| E::invalid_value(de::Unexpected::Str(""), &self))
            }
        }
        deserializer.deserialize_any(Form)
    }
}
