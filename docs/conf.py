"""Settings of Sphinx; docs/build.py copies this file beside the pages that it writes."""

import qkv

project = "qkv"
author = "the authors of qkv"
project_copyright = "the authors of qkv, Apache-2.0"
release = version = qkv.__version__

extensions = ["myst_parser", "sphinx_design", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4
exclude_patterns = ["_static"]
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
python_display_short_literal_types = True
add_module_names = False
toc_object_entries = False
highlight_language = "text"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "qkv"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["print.js"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "qkv"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "back_to_top_button": False,
}
html_sidebars = {"index": []}
