//! `POST /v1/tokenize`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use cider::text::RenderOptions;

use super::app::App;
use super::error::ApiError;
use super::messages::{Conversation, Most};
use super::prepare::Chat;
use super::rules::Rules;
use super::wire::{TokenizeRequest, Tokenized};

/// The tokens of a text or of a chat, as they would reach the model
#[utoipa::path(
    post, path = "/v1/tokenize", tag = "models", request_body = TokenizeRequest,
    responses(
        (status = 200, description = "The tokens", body = Tokenized),
        (status = "default", description = "An error", body = super::wire::ErrorBody),
    )
)]
pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Tokenized>, ApiError> {
    let (asked, share): (TokenizeRequest, _) = app.read_json(request).await?;
    app.check_model(asked.model.as_deref())?;
    let (tokens, _share) = match (asked.prompt, asked.messages) {
        (Some(prompt), None) => {
            app.check_text(prompt.len(), "prompt")?;
            let frontend = Arc::clone(&app.frontend);
            let encode = move || Ok(frontend.raw_prompt(&prompt)?);
            (app.prepare(encode).await?, share)
        }
        (None, Some(messages)) => {
            let most = Most {
                messages: app.limits.messages,
                pictures: app.limits.images,
            };
            let conversation = Conversation::read(Some(messages), asked.images, most)?;
            let options = RenderOptions {
                add_generation_prompt: true,
                tools: asked.tools.unwrap_or_default(),
                extra: asked.chat_template_kwargs.unwrap_or_default(),
            };
            let chat = Chat {
                conversation,
                options,
                rules: Rules::default(),
                answers: 0,
            };
            let (prompt, share) = app.prepare_chat(chat, share).await?;
            (prompt.tokens, share)
        }
        _ => {
            return Err(ApiError::value(
                "prompt",
                "either prompt or messages must be given",
            ));
        }
    };
    let count = tokens.len();
    Ok(Json(Tokenized {
        tokens,
        count,
        max_model_len: app.frontend.context(),
    }))
}
