"""The comparison as one page that needs nothing else: `render_page`. Everything under it is pure but for its templates.

scale     where a value lies on an axis, and where its ticks are
labels    where the name of a curve can stand without hiding another
chart     charts -> lines, texts and polylines at their places
figures   comparison -> the page's charts with their captions
page      all of it through the templates
"""

from prefleet_operator.replay.report.page import render_page

__all__ = ["render_page"]
