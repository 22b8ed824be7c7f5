//! The true text of a request: a canonical rendering in the order in which engines render.

use crate::endpoint::Endpoint;
use crate::head::RequestHead;

/// Gives the rendering to `sink`, span by span.
pub fn render<'a>(_endpoint: Endpoint, _head: &RequestHead<'a>, _sink: &mut impl FnMut(&'a [u8])) {}
