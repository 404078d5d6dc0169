//! Logs on standard error: a word for the level, then the message.

use std::fmt;
use std::io;

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

/// Sends the messages of this program's crates to standard error; `quiet` leaves out what is mere information.
pub(crate) fn start(quiet: bool) {
    let most = if quiet { Level::WARN } else { Level::INFO };
    let ours = move |metadata: &Metadata<'_>| {
        *metadata.level() <= most && metadata.target().starts_with("cider")
    };
    let lines = layer()
        .with_writer(io::stderr)
        .event_format(Lines)
        // Complaining about standard error on standard error would be a panic when it is closed.
        .log_internal_errors(false)
        .with_filter(filter_fn(ours));
    tracing_subscriber::registry().with(lines).init();
}

/// One line per event, without time and place.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "info",
        };
        write!(writer, "{level}: ")?;
        context
            .field_format()
            .format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
