"""Other platforms' APIs, one package each. They translate and hold nothing: the services are the native routes' own."""
