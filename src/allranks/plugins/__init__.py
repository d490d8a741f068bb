"""The plug-ins of allranks itself: see :mod:`allranks.plugin_manager`. Nothing else imports them."""
