//! Which path is answered by whom, and what every request passes before.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::ORIGIN;
use axum::http::{HeaderValue, Method, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse as _;
use axum::routing::{MethodRouter, get, post};

use super::app::App;
use super::body::Heard;
use super::error::{ApiError, Code};
use super::page;
use super::{chat, completions, openapi, status, tokenize};

/// All routes.
pub(super) fn router(app: Arc<App>) -> Router {
    let reads =
        |route: MethodRouter<Arc<App>>| route.fallback(|| async { ApiError::method("GET, HEAD") });
    let asks =
        |route: MethodRouter<Arc<App>>| route.fallback(|| async { ApiError::method("POST") });
    let pages = page::FILES.iter().fold(Router::new(), |router, file| {
        router.route(file.path, reads(get(move || async { file.respond() })))
    });
    pages
        .route("/v1/chat/completions", asks(post(chat::chat)))
        .route("/v1/completions", asks(post(completions::completions)))
        .route("/v1/tokenize", asks(post(tokenize::tokenize)))
        .route("/v1/models", reads(get(status::models)))
        .route("/v1/models/{*id}", reads(get(status::model)))
        .route("/v1/queue", reads(get(status::queue)))
        .route("/health", reads(get(status::health)))
        .route("/ready", reads(get(status::ready)))
        .route("/metrics", reads(get(status::metrics)))
        .route("/openapi.json", reads(get(openapi::openapi)))
        .fallback(|| async { ApiError::new(Code::NotFound, "there is nothing at this path") })
        .layer(from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

/// Lets in whom the gate lets in, and counts the answers.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response<Body> {
    let mut request = Heard::request(request, app.limits.body_bytes);
    let headers = request.headers().clone();
    let preflight = request.method() == Method::OPTIONS && headers.contains_key(ORIGIN);
    let admitted = app.gate.check_host(request.uri(), &headers).and_then(|()| {
        let path = request.uri().path();
        let open = preflight || OPEN.contains(&path) || page::File::is_at(path);
        if open {
            Ok(Default::default())
        } else {
            app.gate.check_key(&headers)
        }
    });
    let mut response = match admitted {
        Ok(_) if preflight => StatusCode::NO_CONTENT.into_response(),
        Ok(salt) => {
            request.extensions_mut().insert(salt);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    app.gate.cors(&headers, response.headers_mut(), preflight);
    let nosniff = HeaderValue::from_static("nosniff");
    response
        .headers_mut()
        .insert("x-content-type-options", nosniff);
    app.metrics.answered(response.status().as_u16());
    if let Some(code) = response.extensions().get::<Code>() {
        app.metrics.failed(*code);
    }
    response
}

/// What needs no key, beside the files of the page, which hold nothing.
const OPEN: [&str; 2] = ["/health", "/ready"];
