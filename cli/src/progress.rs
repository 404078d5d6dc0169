//! Progress bars on standard error, where that is a terminal.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One bar at a time, which appears with its first figures and is gone when its work is done.
pub(crate) struct Progress {
    what: &'static str,
    template: &'static str,
    visible: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar for bytes.
    pub(crate) fn bytes(what: &'static str, quiet: bool) -> Self {
        Self::new(
            what,
            "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}",
            quiet,
        )
    }

    /// A bar for tokens.
    pub(crate) fn tokens(what: &'static str, quiet: bool) -> Self {
        Self::new(what, "{msg} {wide_bar} {pos} of {len} tokens", quiet)
    }

    /// A bar for blocks of a model.
    pub(crate) fn blocks(what: &'static str, quiet: bool) -> Self {
        Self::new(what, "{msg} {wide_bar} {pos} of {len} blocks", quiet)
    }

    fn new(what: &'static str, template: &'static str, quiet: bool) -> Self {
        Self {
            what,
            template,
            visible: !quiet && io::stderr().is_terminal(),
            bar: None,
        }
    }

    /// Shows how far the work is.
    pub(crate) fn show(&mut self, done: usize, total: usize) {
        if !self.visible {
            return;
        }
        if done >= total {
            self.clear();
            return;
        }
        let (what, template) = (self.what, self.template);
        let bar = self.bar.get_or_insert_with(|| {
            let bar =
                ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
            // The templates are constants; a bar of the default style is no harm either.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.with_message(what)
        });
        bar.set_position(done as u64);
    }

    /// Takes the bar off the screen.
    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
