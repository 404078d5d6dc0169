//! The flags of `cider serve`, made from the table of settings.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches, value_parser};

use super::setting::Kind;
use super::settings::{MODEL, SETTINGS};

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServeFlags {
    /// The configuration file.
    pub(crate) config: Option<PathBuf>,
    /// Keys of settings and their values.
    pub(crate) given: Vec<(&'static str, Vec<String>)>,
}

impl clap::Args for ServeFlags {
    fn augment_args(command: Command) -> Command {
        let model = Arg::new(MODEL)
            .value_name("MODEL")
            .help("A GGUF file, or a folder with config.json and safetensors [default: the small vision model]");
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("A YAML file of settings; flags and the environment win over it");
        let flags = SETTINGS.iter().filter(|setting| setting.key != MODEL);
        let flags = flags.map(|setting| {
            let arg = Arg::new(setting.key)
                .long(setting.flag)
                .value_name(setting.value)
                .allow_hyphen_values(setting.kind != Kind::Switch)
                .help(setting.help);
            match setting.kind {
                Kind::Many => arg.action(ArgAction::Append),
                Kind::Switch => arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true"),
                Kind::Text | Kind::Number | Kind::Mode => arg,
            }
        });
        command.arg(model).arg(config).args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServeFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = SETTINGS.iter().filter_map(|setting| {
            let values = matches.get_many::<String>(setting.key)?;
            Some((setting.key, values.cloned().collect()))
        });
        Ok(Self {
            config: matches.get_one(CONFIG).cloned(),
            given: given.collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

const CONFIG: &str = "config";
