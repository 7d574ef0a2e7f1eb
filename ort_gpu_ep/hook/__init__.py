"""A folder for PYTHONPATH: Python imports the sitecustomize.py in it when it starts. Nothing else belongs here."""
