"""Work on several machines: embedding and mining on Ray."""
