//! `cider info`: what this machine has, and what a model is.

use anyhow::Result;

use crate::args::InfoArgs;

/// Runs the command.
pub(crate) fn run(_args: &InfoArgs) -> Result<()> {
    Ok(())
}
