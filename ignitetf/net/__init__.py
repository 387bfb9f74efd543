"""Everything that talks to a cluster: handshake, channels, pipelined requests, retries, client."""
