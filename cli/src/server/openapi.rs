//! The description of the API, made from its types and routes.

use axum::Json;
use utoipa::openapi::OpenApi as Description;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::{chat, completions, status, tokenize};

#[derive(OpenApi)]
#[openapi(
    info(title = "Cider", description = "Language and vision-language models with online activation quantisation"),
    paths(
        chat::chat, completions::completions, tokenize::tokenize, status::models, status::model, status::queue,
        status::health, status::ready, status::metrics, openapi,
    ),
    security(("key" = [])),
    modifiers(&Keys),
)]
struct Api;

/// The scheme of keys.
struct Keys;

impl Modify for Keys {
    fn modify(&self, description: &mut Description) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        description
            .components
            .get_or_insert_default()
            .add_security_scheme("key", scheme);
    }
}

/// This description
#[utoipa::path(get, path = "/openapi.json", tag = "server", responses((status = 200, description = "The description of the API"),
    (status = "default", description = "An error", body = super::wire::ErrorBody)))]
pub(super) async fn openapi() -> Json<Description> {
    Json(Api::openapi())
}
