//! round_trip
