"""The trained judge as an HTTP service: `app.create_app` makes it, `running.run` runs it."""
