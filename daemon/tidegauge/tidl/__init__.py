"""TI's formats and rules, pure: bytes and text in, typed structs out. No I/O, no clock, no policy."""
