//! Decides the next request for the machine of one name. Pure: the input is objects, the output is a request. This
//! module uses no server and no clock.
//!
//! A pass decides, sends the request, updates its view with the response and decides again, until nothing is left to
//! do. Each decision depends only on the current state, so a pass may end after any request and another process can
//! continue.
//!
//! | state of the machine | requests, in this order |
//! |---|---|
//! | needs its network data | reference to the Secret in the VirtualMachine, leases, Secret, annotation, status map |
//! | VirtualMachine is being deleted | delete the Secret |
//! | gone, according to consistent reads | delete the Secret, release the leases, end the IPAddressClaims |
//!
//! These rules prevent two machines from using the same address:
//!
//! - A Secret is created once and never changed. When the Secret of a machine and the leases differ, the Secret is
//!   right, and the controller changes the leases.
//! - An address is released only when its machine is gone and no guest that still exists can have read its Secret.
//! - A VirtualMachine gets the addresses of a KubevirtMachine only if capk creates this VirtualMachine for that
//!   machine. Labels alone are no proof: any user who may create a VirtualMachine can choose its labels.

use crate::kinds::kubevirt_machine::is_deleted;
use crate::machines::step::Step;
use crate::machines::view::View;

/// Decides the next request.
pub(super) fn decide(view: &View) -> Step {
    if let Some(step) = view.look_for_the_gone().or_else(|| view.end_claims()) {
        return step;
    }
    match &view.vm {
        Some(vm) if is_deleted(&vm.metadata) => view.end(vm),
        Some(vm) => view.serve(vm),
        None => view.wake(),
    }
}

#[cfg(test)]
mod tests;
