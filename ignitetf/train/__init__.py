"""Training with data from Ignite: the demonstration, callbacks, device-resident batches."""
