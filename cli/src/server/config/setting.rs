//! What is known of one setting.

use super::Config;
use super::parse::Parsed;

/// One thing that can be set.
pub(super) struct Setting {
    /// Its path in the file, with dots between levels.
    pub(super) key: &'static str,
    /// Its flag, without the hyphens.
    pub(super) flag: &'static str,
    pub(super) kind: Kind,
    /// What help texts call its value.
    pub(super) value: &'static str,
    pub(super) help: &'static str,
    /// Takes one value; one of several for [`Kind::Many`].
    pub(super) set: fn(&mut Config, &str) -> Parsed<()>,
}

/// What values a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// Numbers may stand without quotes.
    Number,
    /// True or false; the flag alone is true.
    Switch,
    /// A list of texts.
    Many,
    /// One of auto, on and off, of which files make true and false.
    Mode,
}

impl Setting {
    /// Whether what it is set to must not be shown.
    pub(super) fn is_secret(&self) -> bool {
        self.key.contains("api_key")
    }

    /// Its environment variable.
    pub(super) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.key.replace('.', "_").to_uppercase())
    }

    pub(super) const fn text(
        key: &'static str,
        flag: &'static str,
        value: &'static str,
        help: &'static str,
        set: Set,
    ) -> Self {
        Self {
            key,
            flag,
            kind: Kind::Text,
            value,
            help,
            set,
        }
    }

    pub(super) const fn number(
        key: &'static str,
        flag: &'static str,
        value: &'static str,
        help: &'static str,
        set: Set,
    ) -> Self {
        Self {
            key,
            flag,
            kind: Kind::Number,
            value,
            help,
            set,
        }
    }

    pub(super) const fn switch(
        key: &'static str,
        flag: &'static str,
        help: &'static str,
        set: Set,
    ) -> Self {
        Self {
            key,
            flag,
            kind: Kind::Switch,
            value: "BOOL",
            help,
            set,
        }
    }

    pub(super) const fn many(
        key: &'static str,
        flag: &'static str,
        value: &'static str,
        help: &'static str,
        set: Set,
    ) -> Self {
        Self {
            key,
            flag,
            kind: Kind::Many,
            value,
            help,
            set,
        }
    }
}

type Set = fn(&mut Config, &str) -> Parsed<()>;

/// How environment variables begin.
pub(super) const PREFIX: &str = "CIDER_SERVE_";
