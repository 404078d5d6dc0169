//! `cider info`: what this machine has, and what a model is.

mod machine;
mod model;
mod vision;

use anyhow::Result;
use serde::Serialize;

use self::machine::MachineInfo;
use self::model::ModelInfo;
use crate::args::InfoArgs;
use crate::console;

/// Runs the command.
pub(crate) fn run(args: &InfoArgs) -> Result<()> {
    let info = Info {
        machine: MachineInfo::new(),
        model: args.model.as_deref().map(ModelInfo::new).transpose()?,
    };
    if args.json {
        return console::json(&info);
    }
    console::text(&info.machine.text())?;
    match &info.model {
        Some(model) => console::text(&model.text()),
        None => Ok(()),
    }
}

#[derive(Serialize)]
struct Info {
    #[serde(flatten)]
    machine: MachineInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelInfo>,
}
