//! The configuration file. Its values become the defaults of the command line's arguments, so that whatever is given otherwise
//! goes before them, and all of them are read by the same rules.

use std::{collections::BTreeSet, path::Path};

use clap::{Arg, ArgAction, Args, Command, FromArgMatches};
use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use super::{Config, ConfigError, LogConfig, StreamConfig, with_environment};

/// A configuration file.
pub struct File {
    path: String,
    /// Each with its line.
    sections: Vec<(String, usize)>,
    settings: Vec<Setting>,
    streams: Vec<StreamConfig>,
}

/// One setting of a section.
struct Setting {
    section: String,
    name: String,
    line: usize,
    value: Value,
}

/// What a setting can have.
enum Value {
    Switch(bool),
    Text(String),
    List(Vec<String>),
    Other(&'static str),
}

#[derive(Deserialize)]
struct Streams {
    #[serde(default, rename = "stream")]
    streams: Vec<StreamConfig>,
}

impl File {
    /// Reads one.
    ///
    /// # Errors
    /// [`ConfigError`] where it cannot be read or is not of the right form.
    pub fn read(path: &Path) -> Result<File, ConfigError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Io { path: shown.clone(), source })?;
        let malformed = |source| ConfigError::Malformed { path: shown.clone(), source: Box::new(source) };
        let Streams { streams } = toml::from_str(&text).map_err(malformed)?;
        let line = |at: usize| 1 + text[..at].matches('\n').count();
        let (mut sections, mut settings) = (Vec::new(), Vec::new());
        for (name, content) in DeTable::parse(&text).map_err(malformed)?.get_ref() {
            let section = name.get_ref().to_string();
            match content.get_ref() {
                _ if section == "stream" => {}
                DeValue::Table(table) => {
                    settings.extend(table.iter().map(|(name, value)| Setting {
                        section: section.clone(),
                        name: name.get_ref().to_string(),
                        line: line(name.span().start),
                        value: Value::of(value.get_ref()),
                    }));
                    sections.push((section, line(name.span().start)));
                }
                _ => return Err(ConfigError::Section { path: shown.clone(), got: section }),
            }
        }
        Ok(File { path: shown, sections, settings, streams })
    }

    /// Its streams.
    #[must_use]
    pub fn into_streams(self) -> Vec<StreamConfig> {
        self.streams
    }

    /// What it says, without anything before it but the environment.
    ///
    /// # Errors
    /// As [`File::set_defaults`].
    pub fn into_config(self) -> Result<Config, ConfigError> {
        let command = with_environment(Config::augment_args(LogConfig::augment_args(Command::new("kvtide"))));
        let matches = self.set_defaults(command)?.try_get_matches_from(["kvtide"])?;
        Ok(Config { streams: self.into_streams(), ..Config::from_arg_matches(&matches)? })
    }

    /// Makes its values the defaults of the arguments of a command and its subcommands.
    ///
    /// # Errors
    /// [`ConfigError`] for a value that has no argument, or that its argument does not take.
    pub fn set_defaults(&self, mut command: Command) -> Result<Command, ConfigError> {
        self.check_sections(&command)?;
        for setting in &self.settings {
            let id = setting.id();
            let argument = all_arguments(&command).find(|argument| argument.get_id() == id.as_str());
            let Some(argument) = argument else { return Err(self.unknown_setting(setting, &command)) };
            let argument =
                setting.as_default(argument.clone()).map_err(|reason| self.wrong(setting, reason))?;
            Command::new("").arg(argument.clone()).try_get_matches_from([""]).map_err(|error| {
                let said = error.to_string();
                let said = said.lines().next().unwrap_or_default();
                self.wrong(setting, said.strip_prefix("error: ").unwrap_or(said).to_owned())
            })?;
            let replace = |of: Command| {
                of.mut_args(|old| if old.get_id() == id.as_str() { argument.clone() } else { old })
            };
            command = replace(command).mut_subcommands(replace);
        }
        Ok(command)
    }

    fn check_sections(&self, command: &Command) -> Result<(), ConfigError> {
        let mut expected: Vec<&str> = places(command).map(|(section, _)| section).collect();
        expected.dedup();
        match self.sections.iter().find(|(section, _)| !expected.contains(&section.as_str())) {
            Some((section, line)) => Err(self.unknown(*line, format!("[{section}]"), &expected)),
            None => Ok(()),
        }
    }

    fn unknown_setting(&self, setting: &Setting, command: &Command) -> ConfigError {
        let in_section = places(command).filter(|&(section, _)| section == setting.section);
        let expected: Vec<&str> = in_section.map(|(_, name)| name).collect();
        self.unknown(setting.line, setting.to_string(), &expected)
    }

    fn unknown(&self, line: usize, got: String, expected: &[&str]) -> ConfigError {
        ConfigError::Unknown { path: self.path.clone(), line, got, expected: expected.join(", ") }
    }

    fn wrong(&self, setting: &Setting, reason: String) -> ConfigError {
        let (path, line) = (self.path.clone(), setting.line);
        ConfigError::Value { path, line, setting: setting.to_string(), reason }
    }
}

fn all_arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().chain(command.get_subcommands().flat_map(Command::get_arguments))
}

/// Section and name of everything that a file can set, streams apart. What several commands can be told stands once.
fn places(command: &Command) -> impl Iterator<Item = (&str, &str)> {
    let mut seen = BTreeSet::new();
    let places = all_arguments(command).filter_map(|argument| argument.get_id().as_str().split_once('.'));
    places.filter(move |&place| place.0 != "stream" && seen.insert(place))
}

impl std::fmt::Display for Setting {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "[{}] {}", self.section, self.name)
    }
}

impl Setting {
    /// The id of its argument.
    fn id(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// Its argument, with it as the default. Else what is wrong with it.
    fn as_default(&self, argument: Arg) -> Result<Arg, String> {
        let is_switch = matches!(argument.get_action(), ArgAction::SetTrue);
        let is_list = matches!(argument.get_action(), ArgAction::Append);
        match &self.value {
            Value::Switch(on) if is_switch => Ok(argument.default_value(on.to_string())),
            Value::Text(text) if !is_switch && !is_list => Ok(argument.default_value(text.clone())),
            Value::List(texts) if is_list => Ok(argument.default_values(texts.clone())),
            got => {
                let expected = if is_switch {
                    "true or false"
                } else if is_list {
                    "an array of strings"
                } else {
                    "a string or a number"
                };
                Err(format!("expected {expected}, got {}", got.describe()))
            }
        }
    }
}

impl Value {
    fn of(value: &DeValue<'_>) -> Value {
        match value {
            DeValue::Boolean(on) => Value::Switch(*on),
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Float(number) => Value::Text(number.as_str().to_owned()),
            DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => Value::Text(number.to_string()),
                Err(_) => Value::Other("a number that is too large"),
            },
            DeValue::Array(array) => {
                let texts = array.iter().map(|value| match Value::of(value.get_ref()) {
                    Value::Text(text) => Some(text),
                    Value::Switch(_) | Value::List(_) | Value::Other(_) => None,
                });
                texts.collect::<Option<_>>().map_or(Value::Other("an array of something else"), Value::List)
            }
            DeValue::Datetime(_) => Value::Other("a time"),
            DeValue::Table(_) => Value::Other("a table"),
        }
    }

    fn describe(&self) -> &'static str {
        match self {
            Value::Switch(_) => "true or false",
            Value::Text(_) => "a string or a number",
            Value::List(_) => "an array",
            Value::Other(what) => what,
        }
    }
}
