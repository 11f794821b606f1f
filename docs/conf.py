"""How Sphinx builds the documents, Markdown as it stands, into a site: `make docs`.

The navigation stands here, so that the pages hold nothing that a reader of plain Markdown would
stumble over. A page that is in no part of it, and a link that leads nowhere, fail the build.
"""

project = "bert-gpu"
author = "bert-gpu"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["data"]
myst_heading_anchors = 4  # headings are link targets, named as GitHub names them
smartquotes = False  # or --flag becomes –flag
highlight_language = "none"  # code is shell, unless a fence says more
html_theme = "furo"
html_title = "bert-gpu"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = dict(
    light_css_variables={"color-brand-primary": "#0072b2", "color-brand-content": "#0072b2"},
    dark_css_variables={"color-brand-primary": "#5cb3e8", "color-brand-content": "#5cb3e8"},
)

PAGES = {
    "Begin": (
        "first-day",
        "how-it-works",
        "text",
        "running",
        "watching",
        "finetuning",
        "search",
        "recipes",
        "continued-pretraining",
        "migration",
    ),
    "Use": ("models", "python"),
    "Choose": (
        "batch-and-rate",
        "memory",
        "several-machines",
        "time-budgets",
        "flags",
        "reference",
    ),
    "Mend": ("troubleshooting",),
    "Look up": ("file-formats",),
}


def add_navigation(app, name, source):
    """Appends the navigation to the first page."""
    if name == app.config.root_doc:
        for title, pages in PAGES.items():
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{listed}\n```\n"


def setup(app):
    app.connect("source-read", add_navigation)
