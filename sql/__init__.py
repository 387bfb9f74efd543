"""Statements that commands run by name; installs as `ignitetf.sql`."""
