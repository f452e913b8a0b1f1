"""The live scheduler over HTTP: REST with an OpenAPI document, an event stream, figures for Prometheus."""
