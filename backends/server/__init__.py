"""A server that speaks OpenAI's HTTP API, in front of our engine: simulated on the wall clock, or with a real model."""
