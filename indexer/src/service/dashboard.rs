//! `GET /`: a page for people, which asks the other routes.

use axum::{http::header, response::IntoResponse};

const PAGE: &str = include_str!("dashboard.html");
/// It asks here alone, and runs nothing but itself.
const POLICY: &str =
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// A page that shows what is known of every rank.
#[utoipa::path(
    get,
    path = "/",
    tag = "operation",
    security(()),
    responses((status = 200, description = "The page", body = String, content_type = "text/html"))
)]
pub(super) async fn get() -> impl IntoResponse {
    let headers =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, POLICY)];
    (headers, PAGE)
}
