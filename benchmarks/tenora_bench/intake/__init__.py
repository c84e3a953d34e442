"""Uploads that mean harm beside other tenants' requests, and uploads while processes are killed."""
