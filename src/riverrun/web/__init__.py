"""The HTTP ground that ingest, store API, dashboards and the SMS gateway share.

Server, request guard, forwarded headers, login parts.
"""
