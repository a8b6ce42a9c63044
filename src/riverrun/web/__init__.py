"""HTTP code shared by ingest, store API, dashboards and the SMS gateway.

Server, request guard, forwarded headers, login.
"""
