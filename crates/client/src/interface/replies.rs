//! The replies of the control interface: fields, and refusals.

use ashlar_control::error::Error;
use ashlar_control::varlink::Reply;
use serde_json::{Value, json};

/// A reply with these fields.
pub fn reply(fields: impl serde::Serialize) -> Result<Value, Reply> {
    serde_json::to_value(fields).map_err(|error| refused(error, None))
}

/// An error of our interface.
pub fn control_error(name: &str, parameters: Value) -> Reply {
    Reply::error(format!("{}.{name}", super::NAME), parameters)
}

/// A refusal, with advice.
pub fn refused(reason: impl std::fmt::Display, hint: Option<&str>) -> Reply {
    refused_with(reason, hint, None)
}

/// A refusal that makes a command exit with this code.
pub fn refused_with(reason: impl std::fmt::Display, hint: Option<&str>, code: Option<u8>) -> Reply {
    let reason = reason.to_string();
    control_error("Refused", json!({ "reason": reason, "hint": hint, "code": code }))
}

/// The refusal for an error of a command.
pub fn refused_by(error: Error) -> Reply {
    let code = error.exit_code();
    let (text, hint) = error.into_parts();
    refused_with(text, hint.as_deref(), Some(code))
}
