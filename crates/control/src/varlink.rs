//! Varlink messages: JSON objects, each terminated by a zero byte (varlink.org, "Protocol").
//!
//! [`Frames`] splits a stream into messages, [`Call`] and [`Reply`] are their contents.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The longest call that is accepted, bytes: a copy of a volume group's description is shorter, unless its metadata areas are larger
/// than usual.
pub const MAX_CALL: usize = 1 << 20;
/// The longest reply that is accepted, bytes: the details of the largest array are shorter.
pub const MAX_REPLY: usize = 4 << 20;

/// A call of a method.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Interface and method: `io.ashlar.Control.Get`.
    pub method: String,
    /// The method's parameters.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// The caller wants no reply.
    #[serde(default, skip_serializing_if = "is_false")]
    pub oneway: bool,
    /// The caller accepts more than one reply.
    #[serde(default, skip_serializing_if = "is_false")]
    pub more: bool,
    /// The paths of the disks whose descriptors come with the call, in their order: not of varlink.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<String>,
    /// The caller wants to switch to another protocol. Our methods do not support it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub upgrade: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A reply.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
pub struct Reply {
    /// The error's full name, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The method's or the error's parameters.
    #[serde(default)]
    pub parameters: Value,
    /// Another reply to the same call follows.
    #[serde(default, skip_serializing_if = "is_false")]
    pub continues: bool,
}

impl Reply {
    /// Success.
    pub fn ok(parameters: Value) -> Self {
        Self { error: None, parameters, continues: false }
    }

    /// An error with its full name.
    pub fn error(name: impl Into<String>, parameters: Value) -> Self {
        Self { error: Some(name.into()), parameters, continues: false }
    }

    /// Marks that more replies follow.
    pub fn continues(self) -> Self {
        Self { continues: true, ..self }
    }

    /// The method sends more than one reply, but the call did not allow that.
    pub fn expected_more() -> Self {
        Self::error("org.varlink.service.ExpectedMore", json!({}))
    }

    /// There is no such interface.
    pub fn interface_not_found(interface: &str) -> Self {
        let parameters = json!({ "interface": interface });
        Self::error("org.varlink.service.InterfaceNotFound", parameters)
    }

    /// There is no such method.
    pub fn method_not_found(method: &str) -> Self {
        Self::error("org.varlink.service.MethodNotFound", json!({ "method": method }))
    }

    /// A parameter is missing, unknown or of the wrong type.
    pub fn invalid_parameter(parameter: &str) -> Self {
        Self::error("org.varlink.service.InvalidParameter", json!({ "parameter": parameter }))
    }
}

/// A message in wire format.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    // Maps with string keys and plain values always have a JSON form.
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    bytes.push(0);
    bytes
}

/// Why a stream is not valid varlink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a message is longer than {0} bytes")]
pub struct OversizedMessage(usize);

/// Splits a stream of bytes into messages.
pub struct Frames {
    max: usize,
    bytes: Vec<u8>,
    /// The number of leading bytes already searched for a terminator.
    searched: usize,
}

impl Frames {
    /// A stream whose messages have at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { max, bytes: Vec::new(), searched: 0 }
    }

    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, without its zero byte; `None` if it has not arrived yet.
    ///
    /// # Errors
    /// It is too long. The rest of the stream cannot be parsed.
    pub fn next_message(&mut self) -> Result<Option<Vec<u8>>, OversizedMessage> {
        let found = self.bytes[self.searched..].iter().position(|byte| *byte == 0);
        let end = found.map(|at| self.searched + at);
        self.searched = self.bytes.len();
        if end.unwrap_or(self.bytes.len()) > self.max {
            return Err(OversizedMessage(self.max));
        }
        let Some(end) = end else { return Ok(None) };
        let rest = self.bytes.split_off(end + 1);
        let mut message = std::mem::replace(&mut self.bytes, rest);
        message.truncate(end);
        self.searched = 0;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_wherever_the_stream_was() {
        let stream = b"one\0\0three\0rest";
        for step in 1..stream.len() {
            let mut frames = Frames::new(MAX_CALL);
            let mut got = Vec::new();
            for piece in stream.chunks(step) {
                frames.push(piece);
                while let Some(message) = frames.next_message().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, [&b"one"[..], b"", b"three"], "{step}");
        }
    }

    #[test]
    fn a_message_without_end_is_not_kept_for_ever() {
        let mut frames = Frames::new(100);
        frames.push(&[b'x'; 100]);
        assert_eq!(frames.next_message(), Ok(None));
        frames.push(b"x");
        assert_eq!(frames.next_message(), Err(OversizedMessage(100)));
    }

    #[test]
    fn calls_and_replies_look_like_varlink() {
        let call = Call {
            method: "io.ashlar.Control.Get".into(),
            parameters: Map::from_iter([("path".to_owned(), "a".into())]),
            oneway: false,
            more: false,
            passed: Vec::new(),
            upgrade: false,
        };
        let text = br#"{"method":"io.ashlar.Control.Get","parameters":{"path":"a"}}"#;
        assert_eq!(encode(&call), [&text[..], b"\0"].concat());
        assert_eq!(serde_json::from_slice::<Call>(text).unwrap(), call);
        let bare: Call = serde_json::from_str(r#"{"method":"a.B"}"#).unwrap();
        assert!(bare.parameters.is_empty() && !bare.oneway);
        let stream = br#"{"parameters":1,"continues":true}"#;
        assert_eq!(encode(&Reply::ok(json!(1)).continues()), [&stream[..], b"\0"].concat());
        let error = Reply::invalid_parameter("path");
        let text = br#"{"error":"org.varlink.service.InvalidParameter","parameters":{"parameter":"path"}}"#;
        assert_eq!(encode(&error), [&text[..], b"\0"].concat());
    }
}
