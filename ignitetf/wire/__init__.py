"""Bytes only: op codes, frames, schema, fields, columns, and the encoder that is their mirror."""
