//! What a refused request gets: `OpenAI`'s envelope, with a code that stays and no text from inside.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use cider::Error;

use super::wire::{ErrorBody, ErrorDetail};

/// A refusal.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: Code,
    message: String,
    param: Option<String>,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
}

/// What went wrong, by the name that clients may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    BodyTooLarge,
    BodyTimeout,
    ContextLengthExceeded,
    DeadlineExceeded,
    HostNotAllowed,
    InternalError,
    InvalidApiKey,
    InvalidBody,
    InvalidGrammar,
    InvalidImage,
    InvalidValue,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    NumericalError,
    Overloaded,
    QueueFull,
    ShuttingDown,
    SlowReader,
    TemplateError,
    UnsupportedMediaType,
    UnsupportedParameter,
    WorkerGone,
}

impl Code {
    /// Every code, for metrics and for the documents.
    pub(super) const ALL: [Self; 23] = [
        Self::BodyTooLarge,
        Self::BodyTimeout,
        Self::ContextLengthExceeded,
        Self::DeadlineExceeded,
        Self::HostNotAllowed,
        Self::InternalError,
        Self::InvalidApiKey,
        Self::InvalidBody,
        Self::InvalidGrammar,
        Self::InvalidImage,
        Self::InvalidValue,
        Self::MethodNotAllowed,
        Self::ModelNotFound,
        Self::NotFound,
        Self::NumericalError,
        Self::Overloaded,
        Self::QueueFull,
        Self::ShuttingDown,
        Self::SlowReader,
        Self::TemplateError,
        Self::UnsupportedMediaType,
        Self::UnsupportedParameter,
        Self::WorkerGone,
    ];

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BodyTooLarge => "body_too_large",
            Self::BodyTimeout => "body_timeout",
            Self::ContextLengthExceeded => "context_length_exceeded",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::HostNotAllowed => "host_not_allowed",
            Self::InternalError => "internal_error",
            Self::InvalidApiKey => "invalid_api_key",
            Self::InvalidBody => "invalid_body",
            Self::InvalidGrammar => "invalid_grammar",
            Self::InvalidImage => "invalid_image",
            Self::InvalidValue => "invalid_value",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::ModelNotFound => "model_not_found",
            Self::NotFound => "not_found",
            Self::NumericalError => "numerical_error",
            Self::Overloaded => "overloaded",
            Self::QueueFull => "queue_full",
            Self::ShuttingDown => "shutting_down",
            Self::SlowReader => "slow_reader",
            Self::TemplateError => "template_error",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::UnsupportedParameter => "unsupported_parameter",
            Self::WorkerGone => "worker_gone",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout | Self::SlowReader => StatusCode::REQUEST_TIMEOUT,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::HostNotAllowed => StatusCode::FORBIDDEN,
            Self::InternalError | Self::NumericalError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::InvalidApiKey => StatusCode::UNAUTHORIZED,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::ModelNotFound | Self::NotFound => StatusCode::NOT_FOUND,
            Self::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Self::Overloaded | Self::ShuttingDown | Self::WorkerGone => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::ContextLengthExceeded
            | Self::InvalidBody
            | Self::InvalidGrammar
            | Self::InvalidImage
            | Self::InvalidValue
            | Self::TemplateError
            | Self::UnsupportedParameter => StatusCode::BAD_REQUEST,
        }
    }
}

impl ApiError {
    /// A refusal with the status of its code.
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            status: code.status(),
            code,
            message: message.into(),
            param: None,
            retry_after: None,
            allow: None,
        }
    }

    /// A value of the request that cannot be.
    pub(super) fn value(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Code::InvalidValue, message).at(param)
    }

    /// A known field that is not honoured.
    pub(super) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Code::UnsupportedParameter, message).at(param)
    }

    /// Too many requests; one may try again after a while.
    pub(super) fn queue_full(after: Duration) -> Self {
        let mut error = Self::new(Code::QueueFull, "the queue is full, try again later");
        error.retry_after = Some(after);
        error
    }

    /// Too much memory is asked for at once.
    pub(super) fn overloaded() -> Self {
        let mut error = Self::new(
            Code::Overloaded,
            "the requests in flight have as many bytes as the server allows, try again later",
        );
        error.retry_after = Some(Duration::from_secs(1));
        error
    }

    /// The method is not one of a known path.
    pub(super) fn method(allow: &'static str) -> Self {
        let mut error = Self::new(
            Code::MethodNotAllowed,
            format!("this path takes {allow} alone"),
        );
        error.allow = Some(allow);
        error
    }

    /// The engine is gone.
    pub(super) fn worker_gone() -> Self {
        Self::new(
            Code::WorkerGone,
            "the engine has stopped, the server needs a restart",
        )
    }

    /// The same at a field of the request, unless it names one already.
    pub(super) fn at(mut self, param: impl Into<String>) -> Self {
        self.param.get_or_insert_with(|| param.into());
        self
    }

    /// Its code.
    pub(super) fn code(&self) -> Code {
        self.code
    }

    /// What the client is told.
    pub(super) fn body(&self) -> ErrorBody {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        ErrorBody {
            error: ErrorDetail {
                message: self.message.clone(),
                kind: kind.to_owned(),
                param: self.param.clone(),
                code: self.code.name().to_owned(),
            },
        }
    }
}

/// What the engine refused or failed at. What is not of the client's making is told to the log alone.
impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::ContextExceeded { .. }
            | Error::ContextSurelyExceeded { .. }
            | Error::ImagesExceedContext { .. } => Code::ContextLengthExceeded,
            Error::Image { .. } => Code::InvalidImage,
            Error::Grammar { kind, .. } => {
                // The field that the rule came in.
                let param = if kind.starts_with("json_") {
                    "response_format"
                } else {
                    kind
                };
                return Self::new(Code::InvalidGrammar, error.to_string()).at(param);
            }
            Error::Request(_) => Code::InvalidValue,
            Error::Template { .. } => Code::TemplateError,
            Error::NonFinite { .. } => {
                tracing::error!("{error}");
                return Self::new(
                    Code::NumericalError,
                    "the model computed numbers that are not finite",
                );
            }
            _ => {
                tracing::error!("{error}");
                return Self::new(Code::InternalError, "the server failed to answer");
            }
        };
        Self::new(code, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        // The body has strings alone, which always serialise.
        let body = serde_json::to_vec(&self.body()).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        match self.code {
            Code::InvalidApiKey => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // What is left of the body is not read.
            Code::BodyTooLarge | Code::BodyTimeout | Code::ShuttingDown => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response.extensions_mut().insert(self.code);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_of_their_own_and_errors() {
        let mut names = Code::ALL.map(Code::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
        assert!(Code::ALL.iter().all(|code| code.status().as_u16() >= 400));
    }

    #[test]
    fn what_happened_inside_is_not_told() {
        let inside = Error::Tokenizer("secret".to_owned());
        let error = ApiError::from(inside);
        assert_eq!(error.code(), Code::InternalError);
        assert!(!error.body().error.message.contains("secret"));
        let error = ApiError::from(Error::ContextExceeded {
            prompt: 7,
            limit: 5,
        });
        let body = error.body().error;
        assert!(body.message.contains('7') && body.message.contains('5'));
        assert_eq!(
            (body.code.as_str(), body.kind.as_str()),
            ("context_length_exceeded", "invalid_request_error")
        );
    }
}
