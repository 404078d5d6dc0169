//! Any JSON object.
//!
//! A model that likes blanks would write them without end, between values and, in an object that nobody described, in
//! its strings too. So there are at most 20 in a row between values and 64 in a string. Numbers have no more digits
//! than every reader takes, and escapes make no half of a surrogate pair.

pub(super) const LARK: &str = r#"
start: object
value: object | array | STRING | NUMBER | "true" | "false" | "null"
object: "{" BLANKS? "}" | "{" member ("," member)* "}"
member: BLANKS? STRING BLANKS? ":" BLANKS? value BLANKS?
array: "[" BLANKS? "]" | "[" element ("," element)* "]"
element: BLANKS? value BLANKS?
BLANKS: /[ \n\r\t]{1,20}/
STRING: /"( {0,64}([^ "\\\x00-\x1f]|\\(["\\\/bfnrt]|u00[0-9a-fA-F]{2})))* {0,64}"/
NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?/
"#;
