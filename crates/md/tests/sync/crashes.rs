//! crashes.
