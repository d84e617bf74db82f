//! stub
#![allow(missing_docs)]
pub trait System {}
#[derive(Default)]
pub struct Linux;
impl System for Linux {}
