//! The options of operations as flags.

use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use warpwright_ops::catalogue::{OPTIONS, OpOptions, OptionSpec};

/// [`OpOptions`] on a command line: `--head-dim 64 --causal`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpFlags(pub OpOptions);

/// The flag of an option, without `--`.
pub(crate) fn flag(option: &str) -> String {
    option.replace('_', "-")
}

fn arg(option: &'static OptionSpec) -> Arg {
    let arg = Arg::new(option.name).long(flag(option.name)).help(option.help.trim());
    let arg = arg.help_heading("Options of operations");
    let Some(value_name) = option.value_name else { return arg.action(ArgAction::SetTrue) };
    let arg = arg.value_name(value_name).allow_hyphen_values(option.signed).action(ArgAction::Set);
    if option.values.is_empty() {
        arg.value_parser(|text: &str| option.check(text).map(|()| text.to_owned()))
    } else {
        arg.value_parser(PossibleValuesParser::new(option.values))
    }
}

impl Args for OpFlags {
    fn augment_args(command: Command) -> Command {
        command.args(OPTIONS.iter().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OpFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for option in OPTIONS {
            let given = match option.value_name {
                None => matches.get_flag(option.name).then_some("true"),
                Some(_) => matches.get_one::<String>(option.name).map(String::as_str),
            };
            let Some(text) = given else { continue };
            option.set(&mut self.0, text).map_err(|_| {
                let mut error = clap::Error::new(ErrorKind::ValueValidation);
                let name = format!("--{}", flag(option.name));
                error.insert(ContextKind::InvalidArg, ContextValue::String(name));
                error.insert(ContextKind::InvalidValue, ContextValue::String(text.to_owned()));
                error
            })?;
        }
        Ok(())
    }
}

/// An example of an option as words of a command line.
#[cfg(test)]
pub(crate) fn words(example: &str) -> Vec<String> {
    match example.split_once('=') {
        Some((name, value)) => vec![format!("--{}", flag(name)), value.to_owned()],
        None => vec![format!("--{}", flag(example))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<OpOptions, clap::Error> {
        let command = OpFlags::augment_args(Command::new("emit").no_binary_name(true));
        OpFlags::from_arg_matches(&command.try_get_matches_from(args)?).map(|flags| flags.0)
    }

    #[test]
    fn flags_set_their_options_alone() {
        assert_eq!(parse(&[]).expect("nothing"), OpOptions::default());
        let options = parse(&["--head-dim", "64", "--causal", "--beta", "-1"]).expect("three options");
        let expected =
            OpOptions { head_dim: Some(64), causal: Some(true), beta: Some(-1.0), ..OpOptions::default() };
        assert_eq!(options, expected);
    }

    #[test]
    fn every_option_takes_its_example_as_flags() {
        for option in OPTIONS {
            let words: Vec<String> = option.example.iter().flat_map(|example| words(example)).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert_ne!(parse(&words).expect(option.name), OpOptions::default(), "{words:?}");
        }
    }

    #[test]
    fn bad_values_are_told_what_was_expected() {
        for (args, part) in [
            (["--transpose", "xx"], "[possible values: nn, nt, tn, tt]"),
            (["--window", "5"], "expected LEFT,RIGHT"),
            (["--biases", "3"], "expected 0, 1 or 2"),
            (["--m", "x"], "invalid digit"),
        ] {
            let error = parse(&args).expect_err("a bad value").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
