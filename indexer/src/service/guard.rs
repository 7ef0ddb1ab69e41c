//! Lets a request pass if its token allows what the route does.

use std::sync::{Arc, LazyLock};

use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderValue, header, request::Parts},
    middleware::Next,
    response::Response,
};

use super::{Service, problem::Problem};
use crate::{
    PromptContent, Query,
    access::{Grant, Role, Tokens},
    watched::Watched,
};

/// Made once, and not for each request.
static EVERYTHING: LazyLock<Arc<Grant>> = LazyLock::new(|| Arc::new(Grant::everything()));

/// By whom the service may be asked.
#[derive(Clone, Default)]
pub enum Access {
    /// By everyone, for everything.
    #[default]
    Open,
    /// By those who have a token.
    Tokens(Arc<Watched<Tokens>>),
}

impl Access {
    /// Keeps up with what may change, for as long as it is polled.
    pub(super) async fn keep_up(self) {
        match self {
            Access::Open => std::future::pending().await,
            Access::Tokens(tokens) => tokens.watch().await,
        }
    }

    /// Whoever has the role, by an `Authorization` header or what stands in its place.
    pub(super) fn asker(&self, authorization: Option<&[u8]>, role: Role) -> Result<Asker, Problem> {
        let grant = match self {
            Access::Open => Arc::clone(&EVERYTHING),
            Access::Tokens(tokens) => {
                let token = authorization.and_then(bearer).ok_or_else(Problem::unauthorized)?;
                tokens.now().grant(token).ok_or_else(Problem::unauthorized)?
            }
        };
        if grant.has(role) { Ok(Asker(grant)) } else { Err(Problem::forbidden_role(role)) }
    }
}

fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Lets those pass who have the role.
pub(super) async fn pass(
    State((access, role)): State<(Access, Role)>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let authorization = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let asker = access.asker(authorization, role)?;
    request.extensions_mut().insert(asker);
    Ok(next.run(request).await)
}

/// Whoever asks, and what that one may see.
#[derive(Clone)]
pub(super) struct Asker(Arc<Grant>);

impl FromRequestParts<Service> for Asker {
    type Rejection = Problem;

    /// Nobody, where the route lets everyone pass.
    async fn from_request_parts(parts: &mut Parts, _: &Service) -> Result<Asker, Problem> {
        parts.extensions.get::<Asker>().cloned().ok_or_else(Problem::unauthorized)
    }
}

impl Asker {
    /// Whether all that a query is about may be seen.
    pub(super) fn may_ask(&self, query: &Query<'_>) -> Result<(), Problem> {
        match &query.prompt {
            PromptContent::Hashes(_) => self.may_use_hashes(),
            PromptContent::Tokens(_) | PromptContent::Multimodal { .. } => {
                self.may_see(query.scope.tenant.as_deref())
            }
        }
    }

    /// Whether blocks of that tenant, or of none, may be seen.
    pub(super) fn may_see(&self, tenant: Option<&str>) -> Result<(), Problem> {
        if self.0.sees(tenant) { Ok(()) } else { Err(Problem::forbidden_tenant()) }
    }

    /// Whether hashes may be used, which may be those of anyone's blocks.
    pub(super) fn may_use_hashes(&self) -> Result<(), Problem> {
        if self.0.sees_hashes() { Ok(()) } else { Err(Problem::forbidden_hashes()) }
    }
}
