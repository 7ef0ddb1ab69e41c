//! Lets a request pass if its token allows what the route does.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, HeaderValue, header, request::Parts},
    middleware::Next,
    response::Response,
};

use super::{Service, problem::Problem};
use crate::{
    PromptContent, Query,
    access::{Grant, Role, Tokens},
    watched::Watched,
};

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

    /// What a request's token allows.
    fn grant(&self, headers: &HeaderMap) -> Result<Grant, Problem> {
        self.grant_to(headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes))
    }

    fn grant_to(&self, authorization: Option<&[u8]>) -> Result<Grant, Problem> {
        let tokens = match self {
            Access::Open => return Ok(Grant::everything()),
            Access::Tokens(tokens) => tokens.now(),
        };
        let token = authorization.and_then(bearer).ok_or_else(Problem::unauthorized)?;
        tokens.grant(token).ok_or_else(Problem::unauthorized)
    }

    /// Whoever has the role by what it says in place of an `Authorization` header.
    pub(super) fn asker(&self, authorization: Option<&[u8]>, role: Role) -> Result<Asker, Problem> {
        let grant = self.grant_to(authorization)?;
        if grant.has(role) { Ok(Asker(Arc::new(grant))) } else { Err(Problem::forbidden_role(role)) }
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
    let grant = access.grant(request.headers())?;
    if !grant.has(role) {
        return Err(Problem::forbidden_role(role));
    }
    request.extensions_mut().insert(Asker(Arc::new(grant)));
    Ok(next.run(request).await)
}

/// Whoever asks, and what that one may see.
#[derive(Clone)]
pub(super) struct Asker(Arc<Grant>);

impl FromRequestParts<Service> for Asker {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Asker, Problem> {
        match parts.extensions.get::<Asker>() {
            Some(asker) => Ok(asker.clone()),
            None => Ok(Asker(Arc::new(service.access.grant(&parts.headers)?))),
        }
    }
}

impl Asker {
    /// Whether all that a query is about may be seen.
    pub(super) fn may_ask(&self, query: &Query) -> Result<(), Problem> {
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
