//! Module parameters of the worker's task queues. All other parameters are libzpool's.

use std::collections::BTreeMap;

use super::taskq::Parameters;

/// Sets a parameter of the task queues; `false` if `name` is not one.
pub(super) fn set(parameters: &mut Parameters, name: &str, value: u64) -> bool {
    let number = u32::try_from(value).unwrap_or(u32::MAX);
    match name {
        "zvol_threads" => parameters.threads = number,
        "zvol_num_taskqs" => parameters.taskqs = number,
        "zvol_blk_mq_threads" => parameters.hardware_queues = number,
        "zvol_request_sync" => parameters.is_synchronous = value != 0,
        _ => return false,
    }
    true
}

/// Separates the task queues' parameters from those of libzpool.
pub(super) fn split(given: BTreeMap<String, u64>) -> (Parameters, BTreeMap<String, u64>) {
    let mut parameters = Parameters::default();
    let mut rest = given;
    rest.retain(|name, value| !set(&mut parameters, name, *value));
    (parameters, rest)
}
