//! What tells of the server itself: models, queue, health, figures.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse as _;

use super::app::App;
use super::error::{ApiError, Code};
use super::wire::{Health, ModelCard, ModelList, Queue};

/// The models that are served
#[utoipa::path(get, path = "/v1/models", tag = "models", responses((status = 200, description = "The one model", body = ModelList),
    (status = "default", description = "An error", body = super::wire::ErrorBody)))]
pub(super) async fn models(State(app): State<Arc<App>>) -> Json<ModelList> {
    Json(ModelList {
        object: "list",
        data: vec![app.card.clone()],
    })
}

/// A model
#[utoipa::path(get, path = "/v1/models/{id}", tag = "models", params(("id" = String, Path, description = "Its name")),
    responses((status = 200, description = "The model", body = ModelCard),
    (status = 404, description = "There is no model of that name", body = super::wire::ErrorBody),
    (status = "default", description = "An error", body = super::wire::ErrorBody)))]
pub(super) async fn model(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    if id == app.card.id {
        return Ok(Json(app.card.clone()));
    }
    Err(ApiError::new(Code::ModelNotFound, "there is no model of that name").at("id"))
}

/// How many answers wait and run
#[utoipa::path(get, path = "/v1/queue", tag = "server", responses((status = 200, description = "The queue", body = Queue),
    (status = "default", description = "An error", body = super::wire::ErrorBody)))]
pub(super) async fn queue(State(app): State<Arc<App>>) -> Json<Queue> {
    Json(app.queue())
}

/// Whether the server lives; no key is needed
#[utoipa::path(get, path = "/health", tag = "server", security(()), responses((status = 200, description = "It lives", body = Health),
    (status = 503, description = "The engine has stopped", body = Health)))]
pub(super) async fn health(State(app): State<Arc<App>>) -> Response<Body> {
    state(app.worker.status().is_alive(), "dead")
}

/// Whether the server takes requests; no key is needed
#[utoipa::path(get, path = "/ready", tag = "server", security(()), responses((status = 200, description = "It does", body = Health),
    (status = 503, description = "It does not", body = Health)))]
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response<Body> {
    let drains = app.draining.load(Ordering::SeqCst);
    state(
        app.worker.status().is_alive() && !drains,
        if drains { "draining" } else { "dead" },
    )
}

fn state(is_well: bool, otherwise: &'static str) -> Response<Body> {
    let (code, status) = if is_well {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, otherwise)
    };
    (code, Json(Health { status })).into_response()
}

/// Figures for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "server", responses((status = 200, description = "The figures", body = String, content_type = "text/plain"),
    (status = "default", description = "An error", body = super::wire::ErrorBody)))]
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    let page = app
        .metrics
        .page(&app.worker.status().stats(), app.budget.held());
    let mut response = Response::new(Body::from(page));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
