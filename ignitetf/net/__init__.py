"""Connections to a cluster: handshake, channels, requests in flight, retry, the client."""
