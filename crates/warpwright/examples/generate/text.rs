//! Texts as tokens.

use std::path::Path;

use tokenizers::Tokenizer;

use super::common::Result;

/// How a text becomes tokens, and tokens a text.
pub(crate) enum Text {
    /// As `tokenizer.json` says.
    Tokenizer(Box<Tokenizer>),
    /// A token for each byte.
    Bytes,
}

impl Text {
    /// For the model of `folder`, if it has a `tokenizer.json`.
    pub(crate) fn open(folder: Option<&Path>, vocab_size: usize) -> Result<Self> {
        let path = folder.map(|folder| folder.join("tokenizer.json")).filter(|path| path.exists());
        match path {
            Some(path) => {
                let tokenizer =
                    Tokenizer::from_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                Ok(Self::Tokenizer(Box::new(tokenizer)))
            }
            None if vocab_size < 256 => {
                Err(format!("no tokenizer.json, and {vocab_size} tokens are too few for bytes").into())
            }
            None => Ok(Self::Bytes),
        }
    }

    pub(crate) fn tokens(&self, text: &str) -> Result<Vec<i64>> {
        let tokens: Vec<i64> = match self {
            Self::Tokenizer(tokenizer) => {
                let encoding = tokenizer.encode(text, true).map_err(|error| error.to_string())?;
                encoding.get_ids().iter().copied().map(i64::from).collect()
            }
            Self::Bytes => text.bytes().map(i64::from).collect(),
        };
        if tokens.is_empty() { Err("the prompt has no token".into()) } else { Ok(tokens) }
    }

    pub(crate) fn of(&self, tokens: &[i64]) -> Result<String> {
        match self {
            Self::Tokenizer(tokenizer) => {
                let ids: Vec<u32> = tokens.iter().map(|token| *token as u32).collect();
                Ok(tokenizer.decode(&ids, true).map_err(|error| error.to_string())?)
            }
            Self::Bytes => {
                // What is no byte is shown as what is no text.
                let bytes: Vec<u8> =
                    tokens.iter().map(|token| u8::try_from(*token).unwrap_or(0xFF)).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
        }
    }
}
