"""Models on the OpenAI wire format that see only what they are sent; everything they return says simulated."""
